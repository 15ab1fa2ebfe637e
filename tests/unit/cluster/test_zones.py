import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.zones import MAX_ZONE_CHARS, zone_of


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("orders;zone=eu-1a", "eu-1a"),
        ("zone=eu-1a", "eu-1a"),
        ("zone=eu-1a;orders-0", "eu-1a"),
        ("orders; zone= eu 1a ;x=y", "eu 1a"),
        ("orders;zone=eu-1a;-StreamThread-1-consumer", "eu-1a"),
        ("a;zone=first;zone=second", "first"),
        ("a;zone=;zone=second", "second"),
        ("zone=a=b", "a=b"),
        ("zone=Größe", "Größe"),
        ("zone=" + "x" * MAX_ZONE_CHARS, "x" * MAX_ZONE_CHARS),
    ],
)
def test_a_client_names_its_zone(client_id: str, zone: str) -> None:
    assert zone_of(client_id) == zone


@pytest.mark.parametrize(
    "client_id",
    [
        None,
        "",
        ";",
        "orders",
        "zone",
        "zone=",
        "zone=  ;",
        "ozone=eu-1a",
        "orders,zone=eu-1a",
        "Zone=eu-1a",
        "zone =eu-1a",
        "x\nzone=eu-1a",
        "zone=eu\n1a",
        "zone=\x1b[31m",
        "zone=a\u202eb",
        "zone=" + "x" * (MAX_ZONE_CHARS + 1),
    ],
)
def test_what_is_not_well_formed_names_no_zone(client_id: str | None) -> None:
    assert zone_of(client_id) is None


@pytest.mark.parametrize("unit", ["zone=", ";", "; ", ";zone=", ";zone= ", "zone=" + "y" * MAX_ZONE_CHARS])
def test_the_longest_client_id_is_read_without_harm(unit: str) -> None:
    zone_of((unit * 32_767)[:32_767])


@given(st.text())
def test_any_client_id_yields_a_clean_zone_or_none(client_id: str) -> None:
    for hostile in (client_id, f"zone={client_id}", f"a;zone={client_id};b"):
        zone = zone_of(hostile)
        assert zone is None or (1 <= len(zone) <= MAX_ZONE_CHARS and zone.isprintable() and ";" not in zone)
