"""Numbers as text, pages, pictures and files; and which differences of them are real."""
