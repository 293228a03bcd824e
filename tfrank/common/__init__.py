"""What every folder may import; it imports none of them."""
