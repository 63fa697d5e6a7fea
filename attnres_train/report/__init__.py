"""Pages about runs, made of the small files in their folders: `attnres report`, and the tables of `attnres ablate`.

run_folder.py       a folder as plain values; what is damaged is told
curves.py           arrays of a tag, smoothed and thinned
facts.py            a row a run, its compute and parameters among them; what differs between configurations
charts.py           what a figure shows, as plain values
training_charts.py  loss, optimization, speed, memory; depth_charts.py maps and sizes by depth
live.py, still.py   the same values as figures of plotly and of matplotlib
page.py             sections as one HTML file
write.py            all of it together
"""
