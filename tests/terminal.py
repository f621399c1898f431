"""What no command may print: characters that a terminal would obey, or that hide what stands beside them."""

import re

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")
