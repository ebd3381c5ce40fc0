"""HeteroServe's evaluation in this project's simulation, with the product's routers."""
