"""What is done to embeddings, or to their similarities, before they are ranked."""
