//! tmp
fn main() {
    for f in std::env::args().skip(1) {
        let r = std::io::BufReader::new(std::fs::File::open(&f).unwrap());
        match trace::replay::replay(r, &f) {
            Ok(s) => {
                println!("{f}: calls {} listings {} mismatches {} predicted {}/{} {:?}", s.total.calls(), s.total.listings, s.total.mismatches, s.total.predicted, s.total.predictable, s.elapsed);
                if let Some(m) = s.first_mismatch { println!("{}", trace::report::mismatch::render(&m, trace::report::Style {width:160,colour:false})); }
            }
            Err(e) => println!("{f}: ERR {e}"),
        }
    }
}
