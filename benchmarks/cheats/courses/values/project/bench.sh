cat value.txt
