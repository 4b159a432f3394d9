"""What a psycopg 3 program does all day: checks.py URL prints a line for each check."""

import asyncio
import datetime
import decimal
import sys
import threading
import time
import traceback

import psycopg
from psycopg import errors
from psycopg.rows import dict_row


def connect(url, **kw):
    return psycopg.connect(url, **kw)


def parameters(url):
    with connect(url) as conn:
        for i in range(12):  # beyond prepare_threshold
            row = conn.execute("select %s::int + 1, %s::text", (i, "ä'\\")).fetchone()
            assert row == (i + 1, "ä'\\"), row
        assert conn.info.server_version >= 130000
        assert conn.info.parameter_status("client_encoding") == "UTF8"


def transactions(url):
    with connect(url) as conn:
        conn.execute("create table if not exists psyco_tx (n int)")
        conn.execute("truncate psyco_tx")
        conn.commit()
        try:
            with conn.transaction():
                conn.execute("insert into psyco_tx values (1)")
                with conn.transaction():
                    conn.execute("insert into psyco_tx values (2)")
                    raise psycopg.Rollback()
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        with conn.transaction():
            conn.execute("insert into psyco_tx values (3)")
            try:
                with conn.transaction():
                    conn.execute("insert into psyco_tx values (4)")
                    conn.execute("select 1/0")
            except errors.DivisionByZero:
                pass
        assert conn.execute("select array_agg(n) from psyco_tx").fetchone() == ([3],)
        conn.execute("drop table psyco_tx")


def server_cursor(url):
    with connect(url) as conn:
        with conn.cursor(name="many") as cur:
            cur.itersize = 100
            cur.execute("select g from generate_series(1, 2500) g")
            assert sum(r[0] for r in cur) == 2500 * 2501 // 2
        with conn.cursor(name="scroll", scrollable=True) as cur:
            cur.execute("select g from generate_series(1, 100) g")
            cur.scroll(50)
            assert cur.fetchone() == (51,)
            cur.scroll(-10)
            assert cur.fetchone() == (42,)
    with connect(url, autocommit=True) as conn:
        cur = conn.cursor(name="held", withhold=True)
        cur.execute("select g from generate_series(1, 10) g")
        for _ in range(5):
            conn.execute("select 1")
        assert len(cur.fetchall()) == 10
        cur.close()


def pipeline(url):
    with connect(url) as conn:
        with conn.pipeline() as p:
            cursors = [conn.execute("select %s::int", (i,)) for i in range(300)]
            p.sync()
            assert [c.fetchone()[0] for c in cursors] == list(range(300))
        conn.commit()
    with connect(url, autocommit=True) as conn, conn.pipeline():
        cur = conn.cursor()
        cur.executemany("select %s::text", [(str(i),) for i in range(200)], returning=True)
        got = []
        while True:
            got.append(cur.fetchone()[0])
            if not cur.nextset():
                break
        assert got == [str(i) for i in range(200)], got[:5]


def pipeline_that_fails(url):
    with connect(url, autocommit=True) as conn:
        for _ in range(3):
            try:
                with conn.pipeline():
                    a = conn.execute("select 1")
                    conn.execute("select 1/0")
                    conn.execute("select 2")
                raise AssertionError("no error")
            except errors.DivisionByZero:
                pass
            assert conn.execute("select 'alive'").fetchone() == ("alive",)


def prepare_threshold(url):
    with connect(url, prepare_threshold=0, autocommit=True) as conn:
        for i in range(30):
            assert conn.execute("select %s::int * 2", (i,)).fetchone() == (2 * i,)
    with connect(url, prepare_threshold=1, autocommit=True) as a, connect(url, prepare_threshold=1, autocommit=True) as b:
        for i in range(20):  # the same names, other texts
            assert a.execute("select %s::int + 1", (i,)).fetchone() == (i + 1,)
            assert b.execute("select %s::int - 1", (i,)).fetchone() == (i - 1,)
    with connect(url, prepare_threshold=None, autocommit=True) as conn:
        for i in range(20):
            assert conn.execute("select %s::int", (i,)).fetchone() == (i,)


def copy_both_ways(url):
    with connect(url) as conn:
        conn.execute("create temp table c (n int, t text)")
        with conn.cursor().copy("copy c from stdin") as copy:
            for i in range(20000):
                copy.write_row((i, "text %d" % i))
        n = 0
        with conn.cursor().copy("copy c to stdout (format binary)") as copy:
            copy.set_types(["int4", "text"])
            for row in copy.rows():
                assert row == (n, "text %d" % n), row
                n += 1
        assert n == 20000
    with connect(url) as conn:
        assert conn.execute("select to_regclass('c')").fetchone() == (None,)


def copy_that_breaks(url):
    with connect(url) as conn:
        conn.execute("create temp table c (n int)")
        try:
            with conn.cursor().copy("copy c from stdin") as copy:
                copy.write("1\n2\nx\n")
            raise AssertionError("no error")
        except errors.InvalidTextRepresentation:
            conn.rollback()
        conn.execute("create temp table c (n int)")
        try:
            with conn.cursor().copy("copy c from stdin") as copy:
                copy.write("1\n")
                raise KeyError("mine")
        except (KeyError, errors.QueryCanceled):  # psycopg 3.1 shows the server's answer
            conn.rollback()
        assert conn.execute("select 1").fetchone() == (1,)


def notifies(url):
    with connect(url, autocommit=True) as a, connect(url, autocommit=True) as b:
        a.execute("listen psyco")
        b.execute("select pg_notify('psyco', 'hello')")
        for n in a.notifies():
            assert (n.channel, n.payload) == ("psyco", "hello"), n
            break
        a.execute("unlisten psyco")


def autocommit(url):
    with connect(url, autocommit=True) as conn:
        conn.execute("create table if not exists psyco_auto (n int)")
        conn.execute("insert into psyco_auto values (1)")
    with connect(url, autocommit=True) as conn:
        assert conn.execute("select count(*) from psyco_auto").fetchone() == (1,)
        conn.execute("vacuum psyco_auto")  # refused inside a transaction
        conn.execute("drop table psyco_auto")
        conn.read_only = True
        conn.autocommit = False
        try:
            conn.execute("create table psyco_ro (n int)")
            raise AssertionError("read only")
        except errors.ReadOnlySqlTransaction:
            conn.rollback()


def cancel(url):
    with connect(url, autocommit=True) as conn:
        for _ in range(3):
            started = time.monotonic()
            t = threading.Timer(0.2, conn.cancel)
            t.start()
            try:
                conn.execute("select pg_sleep(30)")
                raise AssertionError("not cancelled")
            except errors.QueryCanceled:
                pass
            t.join()
            assert time.monotonic() - started < 20
            assert conn.execute("select 1").fetchone() == (1,)


def two_phase_is_refused_as_directly(url):
    with connect(url) as conn:
        conn.tpc_begin(conn.xid(1, "gtrid", "bqual"))
        conn.execute("select 1")
        try:
            conn.tpc_prepare()
            raise AssertionError("max_prepared_transactions is 0")
        except psycopg.NotSupportedError:
            conn.close()


def async_many(url):
    async def one(i):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None) as conn:
            for j in range(10):
                cur = await conn.execute("select %s::int, pg_sleep(0.001)", (i * 100 + j,))
                row = await cur.fetchone()
                assert row[0] == i * 100 + j, row

    async def main():
        await asyncio.gather(*[one(i) for i in range(40)])

    asyncio.run(main())


def client_cursor(url):
    with connect(url, cursor_factory=psycopg.ClientCursor, row_factory=dict_row) as conn:
        cur = conn.execute("select %s as a; select %s as b", ("x", "y"))
        assert cur.fetchone() == {"a": "x"}
        assert cur.nextset()
        assert cur.fetchone() == {"b": "y"}


def types(url):
    values = (
        datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.timezone.utc), decimal.Decimal("12345678901234567890.123456789"),
        b"\x00\xff" * 1000, [1, None, 3], {"a": [1, 2]}, datetime.timedelta(days=3), "x" * 300000, None,
    )
    from psycopg.types.json import Jsonb
    with connect(url) as conn:
        row = conn.execute(
            "select %s::timestamptz, %s::numeric, %s::bytea, %s::int[], %s::jsonb, %s::interval, %s::text, %s::int",
            tuple(Jsonb(v) if isinstance(v, dict) else v for v in values),
        ).fetchone()
        assert row == values, row[:6]


CHECKS = (
    parameters, transactions, server_cursor, pipeline, pipeline_that_fails, prepare_threshold, copy_both_ways, copy_that_breaks,
    notifies, autocommit, cancel, two_phase_is_refused_as_directly, async_many, client_cursor, types,
)

for check in CHECKS:
    try:
        check(sys.argv[1])
        print(check.__name__, "ok")
    except Exception:
        print(check.__name__, "failed")
        traceback.print_exc()
