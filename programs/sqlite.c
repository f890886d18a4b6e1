/* Runs Debian's SQLite: a thousand transactions in memory, and as many on a file below /tmp; a part
 * of them is rolled back. Checks all results, the database's own check, and the file when it is
 * opened again. */
#include "test.h"
#include <sqlite3.h>

static void run(sqlite3 *database, const char *statement)
{
	char *message = NULL;
	if (sqlite3_exec(database, statement, NULL, NULL, &message) != SQLITE_OK)
		differs(__FILE__, __LINE__, "%s: %s", statement, message);
}

static sqlite3_int64 number(sqlite3 *database, const char *query)
{
	sqlite3_stmt *statement;
	EQ(sqlite3_prepare_v2(database, query, -1, &statement, NULL), SQLITE_OK);
	EQ(sqlite3_step(statement), SQLITE_ROW);
	sqlite3_int64 result = sqlite3_column_int64(statement, 0);
	EQ(sqlite3_step(statement), SQLITE_DONE);
	EQ(sqlite3_finalize(statement), SQLITE_OK);
	return result;
}

static void check(sqlite3 *database, long transactions)
{
	long kept = transactions - transactions / 10;
	EQ(number(database, "SELECT COUNT(*) FROM item"), kept * 5);
	/* Each transaction adds as much to one account as it takes from another. */
	EQ(number(database, "SELECT SUM(balance) FROM account"), 0);
	EQ(number(database, "SELECT COUNT(*) FROM item WHERE text != 'item ' || part || ' of ' || "
			    "owner"),
	   0);
	EQ(number(database, "SELECT COUNT(*) FROM item a JOIN item b ON a.owner = b.owner"),
	   kept * 25);
	EQ(number(database, "SELECT integrity_check = 'ok' FROM pragma_integrity_check"), 1);
}

static void transactions(const char *name, long count)
{
	sqlite3 *database;
	EQ(sqlite3_open(name, &database), SQLITE_OK);
	/* The file is in memory, or goes when the program ends: no need to wait for a disk. */
	run(database, "PRAGMA synchronous = OFF");
	run(database, "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER);"
		      "CREATE TABLE item (owner INTEGER, part INTEGER, text TEXT);"
		      "CREATE INDEX by_owner ON item (owner, part);");
	for (int i = 0; i < 10; i++) {
		char text[80];
		sprintf(text, "INSERT INTO account VALUES (%d, 0)", i);
		run(database, text);
	}
	sqlite3_stmt *insert;
	EQ(sqlite3_prepare_v2(database, "INSERT INTO item VALUES (?1, ?2, 'item ' || ?2 || ' of ' "
					"|| ?1)",
			      -1, &insert, NULL),
	   SQLITE_OK);
	for (long i = 1; i <= count; i++) {
		char text[200];
		run(database, "BEGIN");
		for (int part = 0; part < 5; part++) {
			sqlite3_bind_int64(insert, 1, i);
			sqlite3_bind_int64(insert, 2, part);
			EQ(sqlite3_step(insert), SQLITE_DONE);
			EQ(sqlite3_reset(insert), SQLITE_OK);
		}
		sprintf(text,
			"UPDATE account SET balance = balance + %ld WHERE id = %ld;"
			"UPDATE account SET balance = balance - %ld WHERE id = %ld",
			i, i % 10, i, i * 3 % 10);
		run(database, text);
		run(database, i % 10 == 0 ? "ROLLBACK" : "COMMIT");
	}
	EQ(sqlite3_finalize(insert), SQLITE_OK);
	check(database, count);
	EQ(sqlite3_close(database), SQLITE_OK);
}

int main(int argc, char **argv)
{
	long count = sized(argc, argv, 1000);
	char name[64];
	sprintf(name, "/tmp/sqlite-%d", getpid());
	transactions(":memory:", count);
	transactions(name, count);
	sqlite3 *database;
	EQ(sqlite3_open(name, &database), SQLITE_OK);
	check(database, count);
	EQ(sqlite3_close(database), SQLITE_OK);
	OK(unlink(name));
	printf("sqlite: %ld transactions in memory and on a file\n", count);
	return 0;
}
