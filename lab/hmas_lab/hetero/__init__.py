"""HeteroServe's published cluster, load and schedulers in this project's simulation: a sanity check against its Table 1."""

from hmas_lab.hetero.study import run

__all__ = ["run"]
