import sys

from attnres_train.entry import main

sys.exit(main())
