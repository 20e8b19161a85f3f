# What runs on each machine of a Slurm job.
options=(
    --model smollm2-135m-instruct --nnodes "$SLURM_NNODES" --node-rank "$SLURM_PROCID"
    --data-parallel-size "$SLURM_NNODES" --data-parallel-address "$HEAD"
    --cluster-secret-file "$HOME/.triolet-cluster-secret" --shutdown-timeout 60
)
if [ "$SLURM_PROCID" = 0 ]; then
    exec python -m server "${options[@]}" --host 0.0.0.0 --port 8000
fi
exec python -m server --headless "${options[@]}"
