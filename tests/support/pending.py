"""A call whose total is known at once, as ``MPI_Exscan`` takes it."""


class Known:
    """The total of a shard; None where it is empty."""

    head, edges, offset = False, None, None

    def __init__(self, total):
        self.empty, self._total = total is None, total

    def total(self, piece=None):
        return self._total if piece is None else self._total[piece]

    def put(self, piece, offset):
        if offset is not None:
            self._total[piece] = offset
            self.offset = self._total
