# Runs in the guest: reads of 4 KiB and 150 KiB and the incast, beside perftest on the same device.
for bytes in ${SIZES:-4096 153600}; do
  downbeat bench transfer -provider verbs -op ${OPS:-echo,read,incast} -o ${FORMAT:-table} -bytes $bytes -listen 10.77.0.1 -spin 20ms -rounds ${ROUNDS:-4} -each ${EACH:-30}
done

