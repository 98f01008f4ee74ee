"""A list of what tests miss: a reason on a line of its own, then what it explains, each with two spaces in front."""


def read(path):
    """{what is explained: its reason}. Lines that begin with # are left out."""
    reason, explained = None, {}
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            explained[line.strip()] = reason
        elif line and not line.startswith("#"):
            reason = line
    return explained
