// Package nearest finds the word that the author of a mistyped word probably meant. It owns no goroutine.
package nearest

// Word returns the candidate that is most similar to word, by edit distance. It returns "" if no candidate is near enough to be
// a typing mistake. A candidate without a common letter is never near enough. Of equally near candidates it returns the first.
func Word(word string, candidates []string) string {
	best, limit := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if len(word)-len(c) >= limit || len(c)-len(word) >= limit {
			continue // the distance is at least the difference of the lengths
		}
		if d := editDistance(word, c); d < limit && (word == "" || d < max(len(word), len(c))) {
			best, limit = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func editDistance(a, b string) int {
	distance := make([][]int, len(a)+1) // [i][j] is the distance between a[:i] and b[:j]
	for i := range distance {
		distance[i] = make([]int, len(b)+1)
		for j := range distance[i] {
			if i == 0 || j == 0 {
				distance[i][j] = i + j
				continue
			}
			distance[i][j] = min(distance[i-1][j], distance[i][j-1], distance[i-1][j-1]) + 1
			if a[i-1] == b[j-1] {
				distance[i][j] = distance[i-1][j-1]
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				distance[i][j] = min(distance[i][j], distance[i-2][j-2]+1)
			}
		}
	}
	return distance[len(a)][len(b)]
}
