"""What can be wrong with a topic that somebody asks for; a handler has a Kafka error code for each."""

from headrace.errors import Invalid


class InvalidTopicName(Invalid):
    """A name that no topic may have, or one that looks like the name of another topic."""


class InvalidPartitionCount(Invalid):
    """A number of partitions that a topic cannot have, or cannot change to."""


class InvalidTopicConfig(Invalid):
    """A config that topics do not know, or a value that it does not take."""
