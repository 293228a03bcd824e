"""Post-processing of embeddings, or of their similarities, before they are ranked."""
