package config

// Nearest returns the candidate that word was most likely meant to be, "" when none is near enough.
func Nearest(word string, candidates []string) string { return nearest(word, candidates) }

// nearest returns the candidate with the smallest edit distance to word, or "" when none is near enough to be a likely slip of
// the finger. A candidate without a common letter is never near enough. Of equal candidates the first wins.
func nearest(word string, candidates []string) string {
	best, limit := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if d := editDistance(word, c, limit); d < limit && (word == "" || d < max(len(word), len(c))) {
			best, limit = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b. It gives up and
// returns limit once the distance cannot be smaller.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}
