//! Products of matrices in fp32, by the `gemm` crate.

use gemm::Parallelism;

/// A matrix inside a slice: element (i, j) is at `i · row_stride + j · column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The elements, from (0, 0) on.
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub column_stride: usize,
}

/// A matrix to write to, whose rows are contiguous.
#[derive(Debug)]
pub struct Output<'a> {
    /// The elements, from (0, 0) on.
    pub data: &'a mut [f32],
    /// Elements from one row to the next.
    pub row_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    pub fn rows(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    fn last(&self) -> usize {
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.row_stride + column * self.column_stride]
    }
}

/// Products with fewer multiplications than this are not worth a second thread.
const PARALLEL_PRODUCTS: usize = 1 << 18;

/// Writes a·b, or adds it if `add`. With a `limit`, a sum whose magnitude reaches it on the way, in
/// the order of the inner index, becomes an infinity of its sign and stays one.
///
/// # Panics
///
/// If the matrices do not fit each other or their slices: the caller has checked the shapes.
pub fn gemm(a: Matrix<'_>, b: Matrix<'_>, out: &mut Output<'_>, add: bool, limit: Option<f32>) {
    let (rows, columns, inner) = (a.rows, b.columns, a.columns);
    assert_eq!(inner, b.rows, "inner sizes");
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(
        (rows - 1) * out.row_stride + columns <= out.data.len(),
        "output size"
    );
    if inner == 0 {
        if !add {
            for row in out.data.chunks_mut(out.row_stride).take(rows) {
                row[..columns].fill(0.0);
            }
        }
        return;
    }
    assert!(
        a.last() < a.data.len() && b.last() < b.data.len(),
        "operand sizes"
    );
    let parallelism = if rows.saturating_mul(columns).saturating_mul(inner) < PARALLEL_PRODUCTS {
        Parallelism::None
    } else {
        Parallelism::Rayon(0)
    };
    #[expect(
        unsafe_code,
        reason = "the crate takes pointers; the assertions above keep every access inside the slices"
    )]
    // SAFETY: a, b and out are disjoint borrows, and the largest index of each is below its length.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.data.as_mut_ptr(),
            1,
            out.row_stride as isize,
            add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
    if let Some(limit) = limit {
        limit_sums(a, b, out, limit);
    }
}

/// Replaces the sums that reach the limit on the way. Most cannot, which the largest magnitudes of
/// the row and the column tell.
fn limit_sums(a: Matrix<'_>, b: Matrix<'_>, out: &mut Output<'_>, limit: f32) {
    let largest = |count: usize, at: &dyn Fn(usize) -> f32| {
        (0..count).map(|index| at(index).abs()).fold(0f32, f32::max)
    };
    let of_columns: Vec<f32> = (0..b.columns)
        .map(|column| largest(b.rows, &|row| b.at(row, column)))
        .collect();
    for row in 0..a.rows {
        let of_row = largest(a.columns, &|column| a.at(row, column));
        for (column, of_column) in of_columns.iter().enumerate() {
            let bound = of_row * of_column * a.columns as f32;
            if bound < limit {
                continue;
            }
            let mut sum = 0f32;
            for index in 0..a.columns {
                sum += a.at(row, index) * b.at(index, column);
                if sum.abs() >= limit {
                    out.data[row * out.row_stride + column] = f32::INFINITY.copysign(sum);
                    break;
                }
            }
        }
    }
}
