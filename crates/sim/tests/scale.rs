//! What holds for three servers holds for many: the small ones of the shapes of `gabion-sim scale`.

use sim::scale::Shape;

#[test]
fn a_server_with_ten_devices_is_lost_and_made_anew() {
    let shape = Shape { servers: 20, devices: 10, domains: 1 };
    println!("{}", shape.run().unwrap());
}

#[test]
fn a_server_of_one_of_eight_domains_is_lost_and_made_anew() {
    let shape = Shape { servers: 160, devices: 1, domains: 8 };
    println!("{}", shape.run().unwrap());
}
