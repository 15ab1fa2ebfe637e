"""Memory for frames on their way in: little for those who send little, whole places in turn, nobody forgotten."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.intake import Frame, FrameBudget
from headrace.server.limits import PRESSED_STALL_S, WINDOW_BYTES

MIB = 1024 * 1024


class Sender:
    """A frame, and how often it was let on."""

    def __init__(self, kit: "Kit", address: str, size_bytes: int) -> None:
        self.kit = kit
        self.let_on = 0
        self.is_eager = False
        self.frame: Frame = kit.budget.begin(address, size_bytes, self._go_on)

    def _go_on(self) -> None:
        self.let_on += 1
        if self.is_eager:
            self.fill(self.frame.window_bytes - self.frame.filled_bytes)

    @property
    def waits(self) -> bool:
        return self.frame.line_since is not None

    def fill(self, size_bytes: int) -> None:
        """Bring bytes for as long as there is room for them."""
        frame = self.frame
        while size_bytes and not self.waits and frame.filled_bytes < frame.size_bytes:
            step = min(size_bytes, frame.granted_bytes - frame.filled_bytes)
            frame.filled_bytes += step
            size_bytes -= step
            if frame.filled_bytes == frame.size_bytes:
                self.kit.budget.complete(frame)
            elif frame.filled_bytes == frame.granted_bytes:
                self.kit.budget.more(frame)

    def end(self) -> None:
        self.kit.budget.give_back(self.frame)


class Kit:
    def __init__(self, limit_bytes: int = 64 * MIB, window_bytes: int = 32 * MIB) -> None:
        self.now_s = 0.0
        self.budget = FrameBudget(limit_bytes, window_bytes=window_bytes, now=lambda: self.now_s)

    def sender(self, size_bytes: int = 8 * MIB, address: str = "a") -> Sender:
        return Sender(self, address, size_bytes)


def test_frame_gets_all_its_room_at_once_while_there_is_plenty() -> None:
    kit = Kit()
    sender = kit.sender()
    assert sender.frame.granted_bytes == 8 * MIB and kit.budget.taken_bytes == 8 * MIB
    sender.end()
    sender.end()
    assert kit.budget.taken_bytes == 0, "given back once"


def test_half_sent_frames_hold_little_and_leave_room_for_a_new_one() -> None:
    kit = Kit()
    silent = [kit.sender() for _ in range(100)]
    for sender in silent:
        sender.fill(1000)
    assert sum(sender.frame.granted_bytes for sender in silent[4:]) == 96 * WINDOW_BYTES
    honest = kit.sender(200_000)
    honest.fill(200_000)
    assert honest.frame.filled_bytes == 200_000, "it was never stopped"


def test_frames_that_keep_coming_share_windows_and_a_new_one_still_finds_room() -> None:
    kit = Kit()
    greedy = [kit.sender(address=f"host {number % 7}") for number in range(60)]
    for sender in greedy:
        sender.fill(8 * MIB)
    held = [sender.frame.window_bytes for sender in greedy if sender.waits]
    assert len(held) == 56 and kit.budget.waiting_count == 56
    assert sum(held) < 32 * MIB
    honest = kit.sender(200_000)
    honest.fill(200_000)
    assert honest.frame.filled_bytes == 200_000


def test_one_address_cannot_take_all_windows() -> None:
    kit = Kit()
    for _ in range(1000):
        kit.sender().fill(8 * MIB)
    stranger = kit.sender(200_000, address="stranger")
    stranger.fill(200_000)
    assert not stranger.waits and stranger.frame.filled_bytes == 200_000


def test_whole_places_go_to_addresses_in_turn_and_to_their_fastest_senders() -> None:
    kit = Kit(limit_bytes=10 * MIB, window_bytes=2 * MIB)
    first = kit.sender()
    slow, fast, other = kit.sender(), kit.sender(), kit.sender(address="b")
    kit.now_s = 1.0
    for sender in (slow, fast, other):
        sender.frame.began_at = 0.0 if sender is slow else 0.99
        sender.is_eager = True
        sender.fill(8 * MIB)
        assert sender.waits
    first.end()
    assert [sender.frame.granted_bytes == 8 * MIB for sender in (slow, fast, other)] == [False, True, False]
    fast.end()
    assert [sender.frame.granted_bytes == 8 * MIB for sender in (slow, other)] == [False, True]
    other.end()
    assert slow.frame.granted_bytes == 8 * MIB


def test_waiting_frame_is_let_on_in_windows_when_others_give_back() -> None:
    kit = Kit()
    keepers = [kit.sender(address=f"{number}") for number in range(100)]
    for sender in keepers:
        sender.fill(8 * MIB)
    waiting = [sender for sender in keepers if sender.waits]
    least = min(waiting, key=lambda sender: (sender.frame.window_bytes, sender.frame.turn))
    for sender in waiting[-50:]:
        sender.end()
    assert least.let_on


def test_sender_in_line_is_never_called_slow_and_one_that_stands_still_is_only_while_others_wait() -> None:
    kit = Kit(limit_bytes=10 * MIB, window_bytes=2 * MIB)
    silent = kit.sender()
    silent.fill(1000)
    kit.now_s = 10.0
    assert not kit.budget.is_too_slow(silent.frame, stood_still_s=10.0), "nobody waits for its room"
    waiting = kit.sender()
    waiting.fill(8 * MIB)
    assert waiting.waits
    kit.now_s = 20.0
    assert not kit.budget.is_too_slow(waiting.frame, stood_still_s=10.0)
    assert kit.budget.is_too_slow(silent.frame, stood_still_s=PRESSED_STALL_S + 0.1)


def test_slow_sender_with_a_whole_place_makes_room_for_a_much_faster_one() -> None:
    kit = Kit(limit_bytes=10 * MIB, window_bytes=2 * MIB)
    trickling = kit.sender()
    kit.now_s = 4.0
    trickling.fill(2 * MIB)  # half a MiB per second
    assert not kit.budget.is_too_slow(trickling.frame, stood_still_s=0.0)
    fast = kit.sender()
    fast.fill(8 * MIB)
    assert fast.waits and kit.budget.is_too_slow(trickling.frame, stood_still_s=0.0)
    trickling.end()
    assert fast.frame.granted_bytes == 8 * MIB


def test_sender_of_ordinary_pace_is_not_blamed_for_requests_that_are_being_handled() -> None:
    kit = Kit(limit_bytes=34 * MIB, window_bytes=2 * MIB)
    slow = kit.sender(8 * MIB)
    for _ in range(3):
        kit.sender(8 * MIB).fill(8 * MIB)  # received, and now they are handled for long
    kit.now_s = 4.0
    slow.fill(2 * MIB)
    fast = kit.sender()
    fast.fill(8 * MIB)
    assert fast.waits and not kit.budget.is_too_slow(slow.frame, stood_still_s=0.0)


def test_frame_above_the_whole_pool_is_received_alone() -> None:
    kit = Kit(limit_bytes=4 * MIB, window_bytes=2 * MIB)
    one, two = kit.sender(9 * MIB), kit.sender(9 * MIB)
    assert one.frame.granted_bytes == 9 * MIB
    two.fill(9 * MIB)
    assert two.waits
    one.end()
    assert two.frame.granted_bytes == 9 * MIB


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "fill", "end", "tick"]), st.integers(0, 40), st.integers(1, 40 * WINDOW_BYTES)
    ),
    max_size=120,
)


@given(STEPS)
def test_pools_hold_whatever_happens_and_everybody_ends_at_last(steps: list[Step]) -> None:
    kit = Kit(limit_bytes=64 * WINDOW_BYTES, window_bytes=32 * WINDOW_BYTES)
    senders: list[Sender] = []
    perform: dict[str, Callable[[int, int], None]] = {
        "begin": lambda which, size: senders.append(kit.sender(size, address=f"{which % 3}")),
        "fill": lambda which, size: senders[which % len(senders)].fill(size) if senders else None,
        "end": lambda which, size: senders.pop(which % len(senders)).end() if senders else None,
        "tick": lambda which, size: setattr(kit, "now_s", kit.now_s + which / 100),
    }
    for name, which, size in steps:
        perform[name](which, size)
        check(kit, senders)
    # Whoever has room brings its bytes and is answered: so all must end, with no one cut off.
    for _ in range(len(senders) * 50):
        if not senders:
            break
        moving = [sender for sender in senders if not sender.waits]
        assert moving, "somebody always has room"
        for sender in moving:
            sender.fill(sender.frame.size_bytes)
            if sender.frame.filled_bytes == sender.frame.size_bytes:
                senders.remove(sender)
                sender.end()
            check(kit, senders)
    assert not senders
    assert (kit.budget.taken_bytes, kit.budget.waiting_count) == (0, 0)
    assert not kit.budget._peers and not kit.budget._line


def check(kit: Kit, senders: list[Sender]) -> None:
    """The ten-line model: what is held adds up, pools are not passed, and no place in a pool is free for nobody."""
    windows = sum(sender.frame.window_bytes for sender in senders)
    whole = [sender.frame.whole_bytes for sender in senders if sender.frame.whole_bytes]
    assert windows + sum(whole) == kit.budget.taken_bytes
    assert windows <= 32 * WINDOW_BYTES
    assert sum(whole) <= 32 * WINDOW_BYTES or len(whole) == 1
    assert kit.budget.waiting_count == sum(sender.waits for sender in senders)
    assert not kit.budget.waiting_count or whole, "nobody waits while the whole pool is empty"
