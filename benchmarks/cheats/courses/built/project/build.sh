# Whatever has to be made before count.py can be used.
set -e
python3 -c 'import count'
