"""``python -m benchmarks``."""

import sys

from benchmarks import main
from ir_ops.errors import KvfuseError

try:
    sys.exit(main(sys.argv[1:]))
except KvfuseError as error:
    sys.exit(str(error))
