"""What a shell is told when somebody presses tab."""

import os
import subprocess
import sys

PROGRAM = "from headrace.cli.main import main; main()"


def _complete(*words: str, **environment: str) -> list[str]:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def test_commands_and_values_are_completed() -> None:
    assert _complete("headrace", "topic", "") == ["create", "list", "describe", "alter", "delete"]
    assert _complete("headrace", "group", "") == ["list", "describe", "delete", "reset-offsets"]
    assert _complete("headrace", "produce", "-z", "z") == ["zstd"]
    assert _complete("headrace", "group", "list", "--type", "c") == ["classic", "consumer"]


def test_topics_are_asked_for_where_the_command_line_or_a_variable_says(mock_cluster: str) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM, "produce", "completion-topic", "--bootstrap", mock_cluster],
        input=b"x\n",
        check=True,
        capture_output=True,
    )
    expected = ["completion-topic"]
    assert _complete("headrace", "consume", "--bootstrap", mock_cluster, "completion") == expected
    assert _complete("headrace", "topic", "describe", "completion", HEADRACE_BOOTSTRAP=mock_cluster) == expected


def test_a_cluster_that_is_away_completes_nothing() -> None:
    assert _complete("headrace", "consume", "t", HEADRACE_BOOTSTRAP="127.0.0.1:1") == []
    assert _complete("headrace", "group", "describe", "g", HEADRACE_BOOTSTRAP="127.0.0.1:1") == []
