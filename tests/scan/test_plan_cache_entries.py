"""What the cache of plans keeps, gives out and drops, whichever threads ask."""

import pytest

from distscan import plan_cache


class Used:
    """A plan of so many bytes."""

    def __init__(self, nbytes=0):
        self.nbytes = nbytes


def take(key, make):
    """Take the entry of a key out of the cache, or make it; return it and what puts it back."""
    kind = plan_cache.kinds.get((key,))
    try:
        taken = kind.pop()
    except (AttributeError, IndexError):
        taken, kind = make(), None

    def put_back():
        if kind is None or kind.forgotten or taken.nbytes > plan_cache.LARGE:
            plan_cache.keep((key,), taken)
        else:
            kind.last = next(plan_cache.clock)
            kind.append(taken)

    return taken, put_back


def use(key, nbytes=0):
    plan, put_back = take(key, lambda: Used(nbytes))
    put_back()
    return plan


@pytest.fixture
def none_kept():
    plan_cache.clear()
    yield
    plan_cache.clear()


def test_a_kept_plan_belongs_to_one_call(none_kept):
    plan = use("a")
    first, put_back = take("a", Used)
    second, _ = take("a", Used)
    assert first is plan
    assert second is not plan
    put_back()
    assert take("a", Used)[0] is plan


def test_the_plan_that_was_not_used_for_longest_goes(none_kept):
    plans = [use(key) for key in range(plan_cache.MOST)]
    assert use(0) is plans[0]
    another = use("another")
    assert plan_cache.everything() == [*plans[2:], plans[0], another]


def test_a_large_plan_that_is_put_back_takes_the_place_of_another(none_kept):
    large = use("a", plan_cache.LARGE + 1)
    first, put_back = take("a", Used)
    assert first is large
    small, other = use("b"), use("c", plan_cache.LARGE + 1)
    assert plan_cache.everything() == [small, other]
    put_back()
    assert plan_cache.everything() == [small, large]


def test_a_plan_in_use_is_kept_though_others_come():
    class Unit:
        nbytes = 1

    plan_cache.clear()
    take("a", Unit)[1]()
    plan, put_back = take("a", Unit)
    take("b", Unit)[1]()
    put_back()
    assert plan in plan_cache.everything()
    assert take("a", Unit)[0] is plan
    plan_cache.clear()


def test_a_plan_that_a_call_takes_meanwhile_is_not_put_back(none_kept):
    """As another thread takes it, while a large one sweeps the cache."""
    taken = []

    class Sought:
        @property
        def nbytes(self):
            kind = plan_cache.kinds.get(("a",))
            if kind and sweeping:
                taken.append(kind.pop())
            return 0

    sweeping = False
    take("a", Sought)[1]()
    sweeping = True
    plan_cache.keep(("b",), Used(plan_cache.LARGE + 1))
    assert len(taken) == 1
    assert taken[0] not in plan_cache.everything()


def test_the_oldest_plan_may_be_taken_before_it_is_dropped(none_kept):
    class Taken(plan_cache.Kind):
        """Another thread takes its entry when ``keep`` has seen that it is the oldest."""

        looks = 0

        @property
        def last(self):
            self.looks += len(plan_cache.kinds) > 16  # too many: one has to go
            if self.looks == 2:  # the first look counts the entries
                self.clear()
            return 0

        @last.setter
        def last(self, _):
            pass

    plan_cache.kinds["oldest",] = Taken()
    plan_cache.kinds["oldest",].append(Used())
    for key in range(16):
        use(key)
    assert len(plan_cache.everything()) == 16
