//! The `milwright` command.
use milwright::pass::*;
fn main() {
    let (mut n, mut ops) = (0, [0, 0]);
    let quiet = std::env::var("Q").is_ok();
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).unwrap();
        match milwright::model::Model::decode(&bytes) {
            Err(e) => println!("{path}: {e}"),
            Ok(mut m) => {
                n += 1;
                let pipeline = Pipeline::parse("default", milwright::passes::ALL).unwrap();
                let mut mg = Manager::new(milwright::passes::ALL, Settings::default());
                for p in m.programs_mut() {
                    for i in verify::issues(p) {
                        println!("{path}: {i}");
                    }
                    ops[0] += p.count_ops();
                    match mg.run(&pipeline, p, "", &NoBlobs, &mut Silent) {
                        Err(e) => println!("ERR {path}: {e}"),
                        Ok(o) => {
                            if !quiet {
                                println!("{path}");
                                for r in o.remarks {
                                    println!("  {r}");
                                }
                            }
                            for n in o.notes {
                                println!("{path} NOTE {n}");
                            }
                        }
                    }
                    ops[1] += p.count_ops();
                }
                m.encode(&Default::default()).unwrap();
            }
        }
    }
    println!("{n} {ops:?}");
}
