"""What a study will take, said beforehand: jobs, time, memory and disk. Nothing is run or written.

`jobs` lists the jobs of a plan as Snakemake would run them, and which of them are done;
`durations` and `disk` say what each takes, `calibration` measures this machine, `schedule` puts the
jobs on cores, and `answer` and `text` make of it what a user reads.
"""
