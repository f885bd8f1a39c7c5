"""Rows that hold prefix trees, and which prefixes stand before rows."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.backends.packing import make_packs, pack_alone, row_tensors
from evaluation.backends.prefix_tree import Trunk, plan_trunks

token_sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=12, unique=True
)


@given(sequences=token_sequences, longest=st.integers(4, 40), before=st.lists(st.integers(0, 9), max_size=5))
@settings(deadline=None)
def test_packs_hold_every_sequence_and_show_each_only_itself(
    sequences: list[tuple[int, ...]], longest: int, before: list[int]
) -> None:
    after = len(before)
    whole = [(*before, *sequence) for sequence in sequences]
    packs = make_packs(whole, longest, after=after)
    assert sorted(member for pack in packs for member in pack.members) == list(range(len(sequences)))
    tokens, positions, mask = row_tensors(packs, after)
    for row, pack in enumerate(packs):
        assert len(pack) <= longest or len(pack.members) == 1
        for branch, member in enumerate(pack.members):
            columns = pack.columns(branch, 0, len(sequences[member]))
            assert tuple(tokens[row, columns].tolist()) == sequences[member]
            assert positions[row, columns].tolist() == list(range(after, after + len(columns)))
            for place, column in enumerate(columns):
                in_sight = [*range(after), *(after + earlier for earlier in columns[: place + 1])]
                assert mask[row, 0, column].nonzero()[:, 0].tolist() == in_sight
        # A padding token must see something, else its softmax is NaN and spreads.
        assert mask[row, 0].any(dim=-1).all()


@given(sequences=token_sequences, longest=st.integers(4, 40))
@settings(deadline=None)
def test_a_row_holds_each_shared_prefix_once(sequences: list[tuple[int, ...]], longest: int) -> None:
    for pack in make_packs(sequences, longest):
        prefixes = {sequences[member][:stop] for member in pack.members for stop in range(1, 13)}
        assert len(pack) == len(prefixes)


def test_choices_after_one_context_share_its_tokens_and_their_own_beginning() -> None:
    context = tuple(range(20))
    (pack,) = make_packs([(*context, 50, 51), (*context, 60), (*context, 50, 52)], longest=64)
    assert len(pack) == 20 + 3 + 1


def test_a_row_ends_between_documents_rather_than_between_the_choices_of_one() -> None:
    documents = [[(document, *range(10, 30), choice) for choice in range(4)] for document in range(6)]
    packs = make_packs([choice for choices in documents for choice in choices], longest=60)
    assert [len(pack.members) for pack in packs] == [8, 8, 8]


def test_dear_attention_makes_rows_short() -> None:
    sequences = [(document, *range(30)) for document in range(8)]
    assert len(make_packs(sequences, longest=1000, cost=lambda tokens: tokens + 1.0)) == 1
    assert len(make_packs(sequences, longest=1000, cost=lambda tokens: tokens * (1 + tokens / 100))) == 8


def test_pack_alone_shares_nothing() -> None:
    packs = pack_alone([(1, 2), (1, 2, 3)])
    assert [(pack.tokens, pack.members, pack.paths) for pack in packs] == [
        ((1, 2), (0,), ((0, 1),)),
        ((1, 2, 3), (1,), ((0, 1, 2),)),
    ]


def leaves(trunk: Trunk) -> list[int]:
    return [*trunk.leaves, *(leaf for child in trunk.children for leaf in leaves(child))]


def asked(sequences: list[tuple[int, ...]], room: int) -> Trunk:
    return plan_trunks(sequences, [len(sequence) - 2 for sequence in sequences], room)


EXAMPLES = tuple(range(500))


def test_a_prefix_of_all_is_one_trunk_and_documents_stay_its_leaves() -> None:
    sequences = [(*EXAMPLES, *[600 + document] * 100, choice, 7) for document in range(9) for choice in (1, 2)]
    root = asked(sequences, room=300)
    (trunk,) = root.children
    assert root.leaves == ()
    assert (trunk.length, trunk.children, sorted(trunk.leaves)) == (500, (), list(range(18)))
    assert sequences[trunk.example][:500] == EXAMPLES


def test_a_trunk_grows_on_a_trunk_where_many_sequences_share_more() -> None:
    inner = [(*EXAMPLES, *[600] * 200, *[document] * 70, 7) for document in range(9)]
    outer = [(*EXAMPLES, *[601 + document] * 100, 7) for document in range(9)]
    (trunk,) = asked(inner + outer, room=300).children
    (child,) = trunk.children
    assert (trunk.length, sorted(trunk.leaves)) == (500, list(range(9, 18)))
    assert (child.length, sorted(child.leaves)) == (700, list(range(9)))


@pytest.mark.parametrize(
    "sequences",
    [
        pytest.param([(*range(63), *[600 + document] * 100, 7) for document in range(9)], id="short prefix"),
        pytest.param([(*range(100), 600, 7), (*range(100), 601, 7)], id="fits one row"),
        pytest.param([(*EXAMPLES, 7)], id="alone"),
    ],
)
def test_what_does_not_pay_is_no_trunk(sequences: list[tuple[int, ...]]) -> None:
    assert asked(sequences, room=300) == Trunk(0, 0, tuple(range(len(sequences))), ())


def test_a_trunk_ends_before_the_first_token_whose_prediction_is_asked_for() -> None:
    sequences = [(*EXAMPLES, *range(600, 600 + extra)) for extra in (1, 200, 400)]
    (trunk,) = plan_trunks(sequences, [450, 690, 890], room=300).children
    assert trunk.length == 450


@given(sequences=token_sequences)
@settings(deadline=None)
def test_every_sequence_is_a_leaf_once_behind_its_own_beginning(sequences: list[tuple[int, ...]]) -> None:
    stretched = [tuple(token for token in sequence for _ in range(70)) for sequence in sequences]
    root = plan_trunks(stretched, [len(sequence) - 1 for sequence in stretched], room=100)
    assert sorted(leaves(root)) == list(range(len(stretched)))

    def check(trunk: Trunk) -> None:
        beginning = stretched[trunk.example][: trunk.length]
        for leaf in leaves(trunk):
            assert stretched[leaf][: trunk.length] == beginning
            assert len(stretched[leaf]) > trunk.length
        for child in trunk.children:
            assert child.length >= trunk.length + 64
            check(child)

    check(root)
    assert all(one < other for one, other in pairwise(sorted(leaves(root))))
