from tests.cli.running import attnshape, folder, root

__all__ = ["attnshape", "folder", "root"]
