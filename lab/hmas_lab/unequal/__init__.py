"""Routers live on two real engines of unequal speed: chats through the product's front door, as it comes, under each router in turn."""
