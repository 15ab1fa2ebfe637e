"""Guess what a client speaks that does not speak Kafka, so that the log line helps whoever misconfigured it."""

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"GET ", "an HTTP request"),
    (b"POST ", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"HEAD ", "an HTTP request"),
    (b"DELETE ", "an HTTP request"),
    (b"OPTIONS ", "an HTTP request"),
    (b"PATCH ", "an HTTP request"),
    (b"CONNECT ", "an HTTP request"),
    (b"PRI * HTTP/2", "an HTTP/2 request"),
    (b"\x16\x03", "a TLS handshake: this listener is plain text"),
    (b"SSH-", "an SSH banner"),
    (b"AMQP", "an AMQP (RabbitMQ) handshake"),
    (b"*1\r\n", "a Redis command"),
    (b"PING", "a Redis command"),
    (b"USER ", "an FTP or IRC command"),
    (b"EHLO", "an SMTP command"),
    (b"HELO", "an SMTP command"),
    (b"\x00\x00\x00\x08\x04\xd2\x16/", "a PostgreSQL handshake"),
    (b"\x10", "perhaps an MQTT handshake"),
)


def looks_like(head: bytes) -> str:
    """Return what the first bytes of a connection look like."""
    for beginning, meaning in _BEGINNINGS:
        if head.startswith(beginning):
            return meaning
    printable = sum(32 <= byte < 127 or byte in b"\r\n\t" for byte in head)
    return "text" if head and printable == len(head) else "bytes of no known protocol"
