"""``python -m server [model] [flags]`` is ``triolet serve [model] [flags]``."""

import sys

from triolet.cli import serve_main

if __name__ == "__main__":
    sys.exit(serve_main())
