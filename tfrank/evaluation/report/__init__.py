"""Reports of an evaluation as text, pages, pictures and files; and confidence intervals of differences."""
