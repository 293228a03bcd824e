"""The nearest rows of a gallery of embeddings: exactly, by ScaNN or by FAISS."""
