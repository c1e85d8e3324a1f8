from faults.simulation.simulation import simulate
import sys, time
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    t=time.time()
    o = simulate(seed, tell=print if len(sys.argv)>3 else None)
    print(seed, f"{time.time()-t:.2f}s", o.fingerprint[:8], o.steps, round(o.virtual_s), {k:v for k,v in o.counts.items()}, [(k.name,w[:300]) for k,w in o.violations[:4]])
