//! Arrays in `.npz` files, as numpy writes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::path::Path;

use half::f16;
use npyz::{NpyFile, TypeStr, WriterBuilder as _};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

use crate::ir::types::DType;
use crate::tensor::Tensor;

/// Why arrays cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    /// The file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// It is no zip.
    #[error("{path}: it is no .npz file: {source}")]
    Zip {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: zip::result::ZipError,
    },
    /// An array in it.
    #[error("{path}: the array `{array}`: {reason}")]
    Array {
        /// The file.
        path: String,
        /// The array's name.
        array: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Arrays by name.
pub type Arrays = BTreeMap<String, Tensor>;

/// Reads all arrays of a file. Element types map to those of the same name; fp64 values are rounded
/// to fp32, as all floats are held.
pub fn read(path: &Path) -> Result<Arrays, NpzError> {
    let file_name = || path.display().to_string();
    let file = File::open(path).map_err(|source| NpzError::File {
        path: file_name(),
        source,
    })?;
    let zip_error = |source| NpzError::Zip {
        path: file_name(),
        source,
    };
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(zip_error)?;
    let mut arrays = Arrays::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(zip_error)?;
        let name = entry.name().map_err(zip_error)?;
        let array = name.trim_end_matches(".npy").to_owned();
        let tensor = read_array(entry).map_err(|reason| NpzError::Array {
            path: file_name(),
            array: array.clone(),
            reason,
        })?;
        arrays.insert(array, tensor);
    }
    Ok(arrays)
}

fn read_array(entry: impl Read) -> Result<Tensor, String> {
    let text = |error: io::Error| error.to_string();
    let npy = NpyFile::new(entry).map_err(text)?;
    let shape = npy
        .shape()
        .iter()
        .map(|size| usize::try_from(*size))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "its shape is too large".to_owned())?;
    let word = match npy.dtype() {
        npyz::DType::Plain(word) => word.to_string(),
        other => return Err(format!("records ({}) are not read", other.descr())),
    };
    let columns_first = npy.order() == npyz::Order::Fortran;
    let stored = if columns_first {
        shape.iter().rev().copied().collect()
    } else {
        shape.clone()
    };
    let tensor = match word.trim_start_matches(['<', '>', '=', '|']) {
        "f2" => {
            let values: Vec<f16> = npy.into_vec().map_err(text)?;
            let values = values.into_iter().map(f16::to_f32).collect();
            full(DType::Float16, stored, values)?
        }
        "f4" => full(DType::Float32, stored, npy.into_vec::<f32>().map_err(text)?)?,
        "f8" => {
            let values: Vec<f64> = npy.into_vec().map_err(text)?;
            let values = values.into_iter().map(|value| value as f32).collect();
            full(DType::Float64, stored, values)?
        }
        "b1" => full(DType::Bool, stored, npy.into_vec::<bool>().map_err(text)?)?,
        "i1" => integers::<i8, _>(DType::Int8, stored, npy)?,
        "i2" => integers::<i16, _>(DType::Int16, stored, npy)?,
        "i4" => integers::<i32, _>(DType::Int32, stored, npy)?,
        "i8" => integers::<i64, _>(DType::Int64, stored, npy)?,
        "u1" => integers::<u8, _>(DType::UInt8, stored, npy)?,
        "u2" => integers::<u16, _>(DType::UInt16, stored, npy)?,
        "u4" => integers::<u32, _>(DType::UInt32, stored, npy)?,
        "u8" => {
            let values: Vec<u64> = npy.into_vec().map_err(text)?;
            let values = values
                .into_iter()
                .map(|value| i64::try_from(value).map_err(|_| format!("{value} is too large")))
                .collect::<Result<_, _>>()?;
            full::<i64>(DType::UInt64, stored, values)?
        }
        other if other.starts_with('U') => {
            full::<String>(DType::String, stored, npy.into_vec().map_err(text)?)?
        }
        other => return Err(format!("elements of type `{other}` are not read")),
    };
    if columns_first && shape.len() > 1 {
        let axes: Vec<usize> = (0..shape.len()).rev().collect();
        return tensor.transposed(&axes).map_err(|error| error.to_string());
    }
    Ok(tensor)
}

fn integers<T: npyz::Deserialize + Into<i64>, R: Read>(
    dtype: DType,
    shape: Vec<usize>,
    npy: NpyFile<R>,
) -> Result<Tensor, String> {
    let values: Vec<T> = npy.into_vec().map_err(|error| error.to_string())?;
    full::<i64>(dtype, shape, values.into_iter().map(Into::into).collect())
}

fn full<T: crate::tensor::Element>(
    dtype: DType,
    shape: Vec<usize>,
    values: Vec<T>,
) -> Result<Tensor, String> {
    if crate::tensor::elements(&shape) == Some(values.len()) {
        Ok(T::make(dtype, shape, values))
    } else {
        Err(format!("{} elements do not fill {shape:?}", values.len()))
    }
}

/// Writes arrays into a new file, in the order given, uncompressed as numpy's `savez` does.
pub fn write<'t>(
    path: &Path,
    arrays: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
) -> Result<(), NpzError> {
    let file_error = |source| NpzError::File {
        path: path.display().to_string(),
        source,
    };
    let zip_error = |source| NpzError::Zip {
        path: path.display().to_string(),
        source,
    };
    let mut archive = ZipWriter::new(BufWriter::new(File::create(path).map_err(file_error)?));
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    for (name, tensor) in arrays {
        let bytes = npy_bytes(tensor).map_err(|reason| NpzError::Array {
            path: path.display().to_string(),
            array: name.to_owned(),
            reason,
        })?;
        archive
            .start_file(format!("{name}.npy"), options)
            .map_err(zip_error)?;
        archive.write_all(&bytes).map_err(file_error)?;
    }
    let mut file = archive.finish().map_err(zip_error)?;
    file.flush().map_err(file_error)
}

fn npy_bytes(tensor: &Tensor) -> Result<Vec<u8>, String> {
    let text = |error: crate::tensor::TensorError| error.to_string();
    match tensor.dtype() {
        DType::Float16 => {
            let values = tensor.as_floats().map_err(text)?;
            npy("<f2", tensor, values.iter().map(|v| f16::from_f32(*v)))
        }
        DType::Float64 => {
            let values = tensor.as_floats().map_err(text)?;
            npy("<f8", tensor, values.iter().map(|v| f64::from(*v)))
        }
        dtype if dtype.is_float() => {
            let values = tensor.as_floats().map_err(text)?;
            npy("<f4", tensor, values.iter().copied())
        }
        DType::Bool => {
            let values = tensor.as_bools().map_err(text)?;
            npy("|b1", tensor, values.iter().copied())
        }
        DType::String => {
            let values = tensor.as_texts().map_err(text)?;
            let longest = values.iter().map(|v| v.chars().count()).max().unwrap_or(0);
            npy(
                &format!("<U{}", longest.max(1)),
                tensor,
                values.iter().cloned(),
            )
        }
        dtype => {
            let values = tensor.as_ints().map_err(text)?;
            let values = values.iter();
            match dtype {
                DType::Int8 => npy("|i1", tensor, values.map(|v| *v as i8)),
                DType::Int16 => npy("<i2", tensor, values.map(|v| *v as i16)),
                DType::Int32 => npy("<i4", tensor, values.map(|v| *v as i32)),
                DType::UInt16 => npy("<u2", tensor, values.map(|v| *v as u16)),
                DType::UInt32 => npy("<u4", tensor, values.map(|v| *v as u32)),
                DType::Int64 | DType::UInt64 => npy("<i8", tensor, values.copied()),
                DType::Int4 => npy("|i1", tensor, values.map(|v| *v as i8)),
                _ => npy("|u1", tensor, values.map(|v| *v as u8)),
            }
        }
    }
}

fn npy<T: npyz::Serialize>(
    word: &str,
    tensor: &Tensor,
    values: impl Iterator<Item = T>,
) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    let word: TypeStr = word.parse().map_err(|_| format!("no type `{word}`"))?;
    let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new()
        .dtype(npyz::DType::Plain(word))
        .shape(&shape)
        .writer(&mut bytes)
        .begin_nd()
        .map_err(text)?;
    writer.extend(values).map_err(text)?;
    writer.finish().map_err(text)?;
    Ok(bytes)
}
