module hinit/kubernetes/internal/cluster/programs/pause

go 1.26.0
