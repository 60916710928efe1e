"""``python3 tools/on_gpu FOLDER``: put the parent folder on the path, then run the application."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from on_gpu.app import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
