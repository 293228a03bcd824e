"""Published data sets in their official layout: each file turns one into `ImageRecord`s."""
