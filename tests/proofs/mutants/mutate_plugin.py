from mutate import Plugin


def pytest_configure(config):
    config.pluginmanager.register(Plugin(), "mutants")
