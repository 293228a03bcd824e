"""From images, or foreign records, to records with an index."""
