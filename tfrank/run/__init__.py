"""What reads a config: from the command line to the report."""
