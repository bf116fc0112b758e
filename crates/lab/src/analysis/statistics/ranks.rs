//! Rank tests, which assume no distribution, and the correction for multiple tests.

use super::{Interval, sorted, two_sided, z};

/// Result of a rank test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankTest {
    /// The statistic: U of the first sample (Mann–Whitney), or S (Kendall).
    pub statistic: f64,
    /// Two-sided p-value.
    pub p: f64,
}

/// Maximum number of values, in both samples together, for the exact distribution. The distribution
/// of n and m values takes about n·(n+m)³ additions: less than 10 ms for 50 values. With more
/// values the normal approximation is within 1 %.
const EXACT_MAX: usize = 50;

/// Tests if one of two independent samples tends to larger values (two-sided Mann–Whitney U test).
///
/// With up to 50 values the p-value is exact, including ties, by the permutation distribution of
/// the sum of mid-ranks (Streitberg & Röhmel 1986). With more values it is a normal approximation
/// with correction for ties and continuity (Hollander & Wolfe, Nonparametric Statistical Methods,
/// 4.1). Returns `None` if a sample is empty.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<RankTest> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let values: Vec<f64> = a.iter().chain(b).copied().collect();
    let ranks = doubled_ranks(&values);
    let rank_sum: usize = ranks[..a.len()].iter().sum();
    let statistic = rank_sum as f64 / 2.0 - (a.len() * (a.len() + 1)) as f64 / 2.0;
    let p = match values.len() <= EXACT_MAX {
        true => exact_p(&ranks, a.len(), rank_sum),
        false => normal_p(&ranks, a.len(), statistic),
    };
    Some(RankTest { statistic, p })
}

/// Returns Spearman's rank correlation with mid-ranks, from -1 to 1. `None` for fewer than three
/// pairs, or if one of the series does not vary.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() || a.len() < 3 {
        return None;
    }
    let (a, b) = (doubled_ranks(a), doubled_ranks(b));
    let doubled_mean = (a.len() + 1) as f64;
    let deviation = |rank: &usize| *rank as f64 - doubled_mean;
    let covariance: f64 = a.iter().zip(&b).map(|(x, y)| deviation(x) * deviation(y)).sum();
    let square_sum =
        |ranks: &[usize]| ranks.iter().map(|rank| deviation(rank).powi(2)).sum::<f64>();
    let normaliser = (square_sum(&a) * square_sum(&b)).sqrt();
    (normaliser > 0.0).then(|| covariance / normaliser)
}

/// Returns twice the mid-rank of each value, counted from 1. Equal values share a mid-rank, the
/// mean of their ranks. Its double is always an integer.
fn doubled_ranks(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|x, y| values[*x].total_cmp(&values[*y]));
    let mut ranks = vec![0; values.len()];
    let mut group_start = 0;
    while group_start < order.len() {
        let is_tied = |index: &&usize| values[**index] == values[order[group_start]];
        // NaN equals nothing, itself included.
        let count = order[group_start..].iter().take_while(is_tied).count().max(1);
        for index in &order[group_start..group_start + count] {
            ranks[*index] = 2 * group_start + count + 1;
        }
        group_start += count;
    }
    ranks
}

/// Returns the exact two-sided p-value: twice the share of all selections of `size` ranks whose sum is
/// as far in the nearer tail as `sum`, or farther.
fn exact_p(ranks: &[usize], size: usize, sum: usize) -> f64 {
    let selections = selections_by_sum(ranks, size);
    let total: f64 = selections.iter().sum();
    let below: f64 = selections[..=sum].iter().sum();
    let above: f64 = selections[sum..].iter().sum();
    (2.0 * below.min(above) / total).min(1.0)
}

/// Returns, for each sum, the number of selections of `size` ranks with that sum.
fn selections_by_sum(ranks: &[usize], size: usize) -> Vec<f64> {
    let total: usize = ranks.iter().sum();
    // Indexed by the number of selected ranks, then by their sum.
    let mut selections = vec![vec![0.0_f64; total + 1]; size + 1];
    selections[0][0] = 1.0;
    for rank in ranks {
        for selected in (1..=size).rev() {
            let (fewer_selected, rest) = selections.split_at_mut(selected);
            let without_rank = &fewer_selected[selected - 1];
            let with_rank = &mut rest[0];
            for sum in *rank..=total {
                with_rank[sum] += without_rank[sum - rank];
            }
        }
    }
    selections.swap_remove(size)
}

/// Returns the two-sided p-value by the normal approximation of U. The first sample has `size` of
/// the values.
fn normal_p(ranks: &[usize], size: usize, u: f64) -> f64 {
    let (n, m) = (size as f64, (ranks.len() - size) as f64);
    let count = n + m;
    let tie_correction = tied_cubes(ranks) / (count * (count - 1.0));
    let variance = n * m / 12.0 * (count + 1.0 - tie_correction);
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = ((u - n * m / 2.0).abs() - 0.5).max(0.0);
    two_sided(distance / variance.sqrt())
}

/// Returns the sum of t³ − t over all groups of t equal ranks.
fn tied_cubes(ranks: &[usize]) -> f64 {
    let mut ascending = ranks.to_vec();
    ascending.sort_unstable();
    let groups = ascending.chunk_by(|x, y| x == y).map(|group| group.len() as f64);
    groups.map(|count| count.powi(3) - count).sum()
}

/// Returns the Hodges–Lehmann shift of the second sample against the first: the median of all
/// differences b − a. The interval follows from the Mann–Whitney test (at least 95 % for up to 50
/// values). The interval is `None` for samples so small that the test cannot be significant, such as
/// three values each. Source: Hollander & Wolfe, 4.2 and 4.3.
pub fn hodges_lehmann(a: &[f64], b: &[f64]) -> Option<(f64, Option<Interval>)> {
    let all_differences: Vec<f64> = b.iter().flat_map(|y| a.iter().map(move |x| y - x)).collect();
    let differences = sorted(&all_differences);
    let shift = super::median(&differences)?;
    let rank = critical_rank(a.len(), b.len());
    let interval = (rank >= 1 && rank <= differences.len() / 2).then(|| Interval {
        low: differences[rank - 1],
        high: differences[differences.len() - rank],
    });
    Some((shift, interval))
}

/// Returns the largest k with P(U < k) ≤ 2.5 %. U is the statistic of the Mann–Whitney test for
/// samples of `n` and `m` different values. 0 means that no value of U is significant.
fn critical_rank(n: usize, m: usize) -> usize {
    let tail = (1.0 - super::CONFIDENCE) / 2.0;
    if n + m > EXACT_MAX {
        let (n, m) = (n as f64, m as f64);
        let spread = z(super::CONFIDENCE) * (n * m * (n + m + 1.0) / 12.0).sqrt();
        return (n * m / 2.0 - spread).floor().max(0.0) as usize;
    }
    let ranks: Vec<usize> = (1..=n + m).collect();
    let selections = selections_by_sum(&ranks, n);
    let total: f64 = selections.iter().sum();
    let mut cumulated = 0.0;
    let is_in_tail = |selections: &&f64| {
        cumulated += **selections;
        cumulated / total <= tail
    };
    // U is 0 at the smallest sum of n ranks.
    let smallest_sum = n * (n + 1) / 2;
    selections[smallest_sum..].iter().take_while(is_in_tail).count()
}

/// Returns p-values that are corrected for the number of tests, in the same order. If no tested
/// difference is real, P(any corrected p-value ≤ α) ≤ α for each level α (family-wise error rate).
/// Source: Holm 1979.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|x, y| p_values[*x].total_cmp(&p_values[*y]));
    let mut corrected = vec![0.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        let remaining_tests = (p_values.len() - rank) as f64;
        largest = largest.max((p_values[index] * remaining_tests).min(1.0));
        corrected[index] = largest;
    }
    corrected
}

/// Tests if the values rise or fall with their order (two-sided Mann–Kendall test). It uses the
/// normal approximation with correction for ties and continuity (Kendall, Rank Correlation Methods,
/// 1975). `None` for fewer than four values, because no order of three values is significant.
pub fn mann_kendall(values: &[f64]) -> Option<RankTest> {
    let count = values.len();
    if count < 4 {
        return None;
    }
    let mut statistic = 0.0;
    for (index, earlier) in values.iter().enumerate() {
        for later in &values[index + 1..] {
            statistic += f64::from(later > earlier) - f64::from(later < earlier);
        }
    }
    let n = count as f64;
    let ascending = sorted(values);
    let groups = ascending.chunk_by(|x, y| x == y).map(|group| group.len() as f64);
    let tie_correction: f64 = groups.map(|t| t * (t - 1.0) * (2.0 * t + 5.0)).sum();
    let variance = (n * (n - 1.0) * (2.0 * n + 5.0) - tie_correction) / 18.0;
    let distance = (f64::abs(statistic) - 1.0).max(0.0);
    let p = if variance > 0.0 { two_sided(distance / variance.sqrt()) } else { 1.0 };
    Some(RankTest { statistic, p })
}
