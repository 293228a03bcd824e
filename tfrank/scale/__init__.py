"""Records, embeddings, exact evaluation and indexes of galleries that no machine holds, on Apache Beam."""
