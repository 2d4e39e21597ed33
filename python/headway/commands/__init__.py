"""The commands of ``headway``, a file each; ``headway.cli`` lists them."""
