"""What clients really send, through the product as it comes and through the same gateway with nothing switched on."""
