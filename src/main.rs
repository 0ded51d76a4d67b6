//! The `milwright` command.
fn main() {
    let (mut n, mut same) = (0, 0);
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).unwrap();
        match milwright::model::Model::decode(&bytes) {
            Err(e) => println!("{path}: {e}"),
            Ok(m) => {
                n += 1;
                for p in m.programs() {
                    if let Err(e) = milwright::ir::verify::verify(p.program) {
                        println!("{path}: {e}");
                    }
                }
                let out = m.encode(&Default::default()).unwrap();
                if out.len() == bytes.len() {
                    same += 1
                } else {
                    println!("{path}: {} {}", bytes.len(), out.len())
                }
                let m2 = milwright::model::Model::decode(&out).unwrap();
                assert!(m2.encode(&Default::default()).unwrap() == out, "{path}");
            }
        }
    }
    println!("{n} {same}");
}
