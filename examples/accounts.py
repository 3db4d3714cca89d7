"""A CSV file of payments becomes a table with the balance of each account after each payment.

pyarrow reads the CSV file, sorts it by account and day, and writes payments.parquet, in groups of
rows. The file job adds up the amounts of each account: neighbours of one account are a segment,
also where they lie in several groups, or on several ranks. It writes balances.parquet: the same
table with one more column.

The program writes payments.csv, payments.parquet and balances.parquet into FOLDER.

    mpirun -n 2 python examples/accounts.py --picture accounts.png
    mpirun -n 2 python examples/accounts.py --n 1_000_000 --folder /tmp
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Sum payments up to balances.")
parser.add_argument("--n", type=int, default=20_000, help="payments")
parser.add_argument("--folder", default=".", help="where the files are written")
parser.add_argument("--picture", help="the file of the picture, such as accounts.png")
arguments = parser.parse_args()
ACCOUNTS, DAYS = 40, 365
comm = MPI.COMM_WORLD
folder = Path(arguments.folder)
text, path, balances = (
    folder / name for name in ("payments.csv", "payments.parquet", "balances.parquet")
)

if comm.rank == 0:
    rng = np.random.default_rng(7)
    days = np.sort(rng.integers(0, DAYS, arguments.n))
    with text.open("w") as file:
        print("account,day,cents", file=file)
        for day in days:
            cents = rng.integers(-10_000, 10_500) if rng.random() < 0.99 else ""  # not known yet
            print(f"DE{rng.integers(ACCOUNTS):02},{day},{cents}", file=file)
    payments = pyarrow.csv.read_csv(text).sort_by([("account", "ascending"), ("day", "ascending")])
    pyarrow.parquet.write_table(payments, path, row_group_size=1500, compression="zstd")
comm.Barrier()

report = distscan.scan_file(
    f"{path}::cents",
    f"{balances}::balance",
    segments="account",
    nulls="skip",
    comm=comm,
    backend="cpu",
    force=True,
)

if comm.rank == 0:
    table = pyarrow.parquet.read_table(balances)
    names, days = (table.column(name).to_numpy() for name in ("account", "day"))
    cents = table.column("cents").fill_null(0).to_numpy()
    balance = table.column("balance").to_numpy()  # NaN where the payment is not known yet
    unknown = np.asarray(table.column("cents").is_null())
    assert table.drop_columns("balance").equals(pyarrow.parquet.read_table(path))
    for name in np.unique(names):
        rows = names == name
        want = np.where(unknown[rows], np.nan, cents[rows].cumsum())
        np.testing.assert_array_equal(balance[rows], want)
    print(f"accounts: {report.elements} payments are added up in {balances}, ranks: {comm.size}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in np.unique(names)[:8]:
        shown = (names == name) & ~unknown
        axes.step(days[shown], balance[shown] / 100, where="post", label=name)
    axes.set(title="Balances of eight accounts", xlabel="day", ylabel="euros")
    axes.legend(ncols=2)
    figure.savefig(arguments.picture)
