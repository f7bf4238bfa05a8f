"""``python -m graphjoule``, which torchrun's ``-m`` needs: the command line."""

from graphjoule.cli import main

if __name__ == "__main__":
    main()
